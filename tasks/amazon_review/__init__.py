"""Amazon Review: how many stars does a review give, one client a reviewer."""
