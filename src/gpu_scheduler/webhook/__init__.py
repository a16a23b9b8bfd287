"""Admission: what pods of ours get on their way in, and what is told to whoever wrote them wrongly."""
