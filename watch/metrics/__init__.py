"""What operators watch: metrics of coordinators and drivers for Prometheus. Needs onceward[metrics]."""
