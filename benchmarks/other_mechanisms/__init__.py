"""Mechanisms of other libraries, as plug-ins of `adlm audit --subject`."""
