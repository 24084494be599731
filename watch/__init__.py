"""To watch jobs: metrics, the page, traces."""
