"""Client systems: what devices can do, when they are available, and how long rounds take them."""
