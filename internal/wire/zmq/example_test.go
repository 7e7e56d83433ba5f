package zmq_test

import (
	"context"
	"fmt"
	"log"

	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// An engine says hello and a frontend answers it by its identity.
func Example() {
	ctx := context.Background()
	frontend, err := zmq.Listen("tcp://127.0.0.1:0", zmq.Router, zmq.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer frontend.Close()
	engine, err := zmq.Dial(ctx, frontend.Endpoint(), zmq.Dealer, zmq.Options{Identity: []byte{0, 0}})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	if err := engine.Send([]byte("hello")); err != nil {
		log.Fatal(err)
	}

	for {
		d, err := frontend.Recv(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s %x %s\n", d.Kind, d.Peer.Type, d.Peer.Identity, d.Message)
		if d.Kind != zmq.Received {
			continue
		}
		if err := frontend.Send(d.Peer.Identity, []byte("welcome")); err != nil {
			log.Fatal(err)
		}
		break
	}
	answer, err := engine.Recv()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", answer)
	// Output:
	// joined: DEALER 0000 []
	// received: DEALER 0000 [hello]
	// [welcome]
}
