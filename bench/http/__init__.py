"""HTTP: webhooks that go out, and the gateway, beside what a program would do itself."""
