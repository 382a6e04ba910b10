"""The zoo's moving pictures: clips, how they are measured, and how their pipeline is trained."""
