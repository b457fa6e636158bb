"""Low trees on irregular fabrics: where boxes hang on which, searched within what links carry."""
