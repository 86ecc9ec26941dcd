"""One process a rank: runs a WPG's operations on a training backend."""
