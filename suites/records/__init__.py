"""What a run leaves behind and what every number means. Free of torch: the only room that reports may enter."""
