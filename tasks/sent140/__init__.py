"""Sent140: is a tweet's mood good or bad, one client a Twitter user."""
