"""One typed tree of settings; flags, environment, YAML and documentation are generated from it."""
