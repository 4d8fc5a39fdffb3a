"""Reddit: predict the next token of comments, one client an author."""
