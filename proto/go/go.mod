module github.com/gardener/dependency-watchdog/proto/go

go 1.19

// The oldest versions that the tests build with.
require (
	google.golang.org/grpc v1.33.3
	google.golang.org/protobuf v1.28.1
)
