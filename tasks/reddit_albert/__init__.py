"""Reddit with ALBERT: fill in masked tokens of comments, one client an author."""
