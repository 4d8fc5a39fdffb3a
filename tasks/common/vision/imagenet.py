"""Units of images for networks and features of ImageNet's conventions.

Source: torchvision's documentation of its classification weights.
"""

# Mean and standard deviation of each channel of ImageNet's pixels, in 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
