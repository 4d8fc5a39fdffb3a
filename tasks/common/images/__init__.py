"""Tasks on labelled images that are published as arrays, with clients made when a row is loaded."""
