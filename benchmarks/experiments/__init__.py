"""Figures and tables: the paper's, side by side with DP-SGD and with ours."""
