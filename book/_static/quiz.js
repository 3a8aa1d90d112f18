/* Scores the questions written with the {quiz} directive. */
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("form.cbo-quiz")) return;
  event.preventDefault();
  const verdict = form.querySelector(".cbo-quiz-verdict");
  const chosen = form.querySelector("input:checked");
  form.dataset.state = !chosen ? "empty" : "right" in chosen.dataset ? "right" : "wrong";
  verdict.textContent = { empty: "Choose an answer first.", right: "Right.", wrong: "Not this one." }[form.dataset.state];
  form.querySelectorAll(".cbo-quiz-feedback").forEach((text) => {
    text.hidden = !chosen || text.dataset.choice !== chosen.value;
  });
});
