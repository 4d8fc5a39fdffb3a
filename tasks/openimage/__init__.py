"""OpenImage as FedScale cuts it: one label a picture, one client a Flickr user."""
