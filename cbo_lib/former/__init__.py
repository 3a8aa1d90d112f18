"""The foundation of the chapters that have not been rewritten yet; each takes with it what it alone needs."""
