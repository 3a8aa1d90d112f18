"""What teachers need: the guide and the typical mistakes."""
