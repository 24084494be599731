"""What OpenTelemetry shows of checkpoints: one trace each, across coordinator, driver and tasks. Needs
onceward[otel]."""
