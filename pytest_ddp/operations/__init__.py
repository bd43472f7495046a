"""What ranks do in a process group, as plain values without torch: which operations match, who waits for whom."""
