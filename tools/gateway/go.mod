// Of these only files are used: the resource types of the Gateway API and of its inference extension, and the schema of Docker Compose.
module github.com/vllm-vcr/conformance/tools/gateway

go 1.26.8

require (
	github.com/compose-spec/compose-go/v2 v2.16.2
	sigs.k8s.io/gateway-api v1.4.0
	sigs.k8s.io/gateway-api-inference-extension v1.5.0
)
