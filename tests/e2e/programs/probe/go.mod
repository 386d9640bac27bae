// What runs inside the containers of the end-to-end tests: one static program, so that an image needs nothing else.
module dracaena.dev/e2e/probe

go 1.26.0
