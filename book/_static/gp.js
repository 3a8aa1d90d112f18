/* A Gaussian process on weighted points: what cell.js and gpoo.js compute in the page. */
(() => {
  "use strict";
  /* The lower triangle L with L L' = A. */
  const cholesky = (A) => {
    const L = A.map(() => new Float64Array(A.length));
    for (let i = 0; i < A.length; i++)
      for (let j = 0; j <= i; j++) {
        let sum = A[i][j];
        for (let k = 0; k < j; k++) sum -= L[i][k] * L[j][k];
        L[i][j] = i === j ? Math.sqrt(sum) : sum / L[j][j];
      }
    return L;
  };
  const forward = (L, b) => {
    const z = new Float64Array(b.length);
    for (let i = 0; i < b.length; i++) {
      let sum = b[i];
      for (let k = 0; k < i; k++) sum -= L[i][k] * z[k];
      z[i] = sum / L[i][i];
    }
    return z;
  };
  /* Mean and variance at the places `at`, each a point or a set of points whose average is meant, after the averages y
     over `sets` of points were seen with noise. */
  const posterior = ({ lengthscale, variance, noise }, sets, y, at) => {
    const k = (a, b) => variance * Math.exp(-((a - b) ** 2) / (2 * lengthscale ** 2));
    const between = (A, B) => {
      let sum = 0;
      for (const a of A) for (const b of B) sum += k(a, b);
      return sum / (A.length * B.length);
    };
    const L = cholesky(sets.map((A, i) => sets.map((B, j) => (j > i ? 0 : between(A, B) + (i === j ? noise ** 2 : 0)))));
    const right = forward(L, y);
    const mean = [], left = [];
    for (const place of at) {
      const X = Array.isArray(place) ? place : [place];
      const z = forward(L, sets.map((A) => between(A, X)));
      mean.push(z.reduce((sum, value, i) => sum + value * right[i], 0));
      left.push(between(X, X) - z.reduce((sum, value) => sum + value * value, 0));
    }
    return { mean, variance: left };
  };
  /* Midpoints of equal parts of a cell. */
  const points = ([center, width], count) => Array.from({ length: count }, (_, i) => center + width * ((i + 0.5) / count - 0.5));

  Object.assign(window.cboStepper, { posterior, points });
})();
