"""What a learner types: where am I, grading, hints, progress, one's own parts in the engine."""
