"""Operations counted by hand: FLOPs, bytes, intensity, bounds, sweeps, crossings."""
