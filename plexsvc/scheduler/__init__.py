"""The scheduler: a pure core that decides, and a driver that journals, asks it and acts."""
