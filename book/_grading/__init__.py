"""Marking: students' code runs in a box, and a judge outside decides what its answers are worth."""
