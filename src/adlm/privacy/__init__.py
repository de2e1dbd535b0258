"""The cost of a release and its documents: charges and their composition, certificates, signatures."""
