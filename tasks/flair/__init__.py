"""FLAIR: Flickr pictures of 51,414 users with coarse and fine labels (Song et al. 2022)."""
