"""Floor 5: leave the house. A card goes in, a folder for another project's loader comes out; one file a layout."""
