"""What a release costs and says: charges and how they add up, certificates, signatures."""
