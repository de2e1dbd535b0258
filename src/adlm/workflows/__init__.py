"""The main jobs, through the packages in order: privatise, forecast."""
