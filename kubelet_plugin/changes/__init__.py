"""What the plugin changed on its node: one ledger, keyed by the thing that was changed, and one engine."""
