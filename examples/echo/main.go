// Command echo is the smallest service: a server that returns what it is sent,
// and a client that says what really carried the calls.
//
//	go run ./examples/echo -listen :7400
//	go run ./examples/echo -addr host:7400 hello
//
// Calls run over RDMA where both sides can, else over TCP; -tcp asks for TCP
// alone, on either side.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/examples/echo/echopb"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatalf("echo: %v", err)
	}
}

func run() error {
	listen := flag.String("listen", "", "serve at this address, host:port")
	addr := flag.String("addr", "", "call the server at this address, host:port")
	tcpOnly := flag.Bool("tcp", false, "use TCP alone, although there may be RDMA")
	count := flag.Int("n", 1000, "calls to make")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	network := &transport.Network{Carrier: &tcp.Carrier{}}
	if !*tcpOnly {
		fabric := rdma.New(rdma.Config{})
		defer fabric.Close()
		network.Fabric = fabric
	}
	switch {
	case (*listen == "") == (*addr == ""):
		return errors.New("give either -listen or -addr")
	case *count < 1:
		return fmt.Errorf("-n is %d, expected at least 1", *count)
	case *listen != "":
		return serve(ctx, network, *listen)
	}
	return call(ctx, network, *addr, strings.Join(flag.Args(), " "), *count)
}

type echo struct{}

func (echo) Say(_ context.Context, req *echopb.Text) (*echopb.Text, error) { return req, nil }

// serve runs the server until ctx ends, and then lets calls under way finish.
func serve(ctx context.Context, network *transport.Network, addr string) error {
	server := rpc.NewServer(network)
	if err := echopb.RegisterEchoServer(server, echo{}); err != nil {
		return err
	}
	if err := server.Listen(addr); err != nil {
		return err
	}
	fmt.Println("listening on", server.Addr())
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return server.Shutdown(grace)
}

// call says text count times and prints how that went.
func call(ctx context.Context, network *transport.Network, addr, text string, count int) error {
	dialCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := rpc.Dial(dialCtx, network, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := echopb.NewEchoClient(conn)
	start := time.Now()
	var reply *echopb.Text
	for range count {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		reply, err = client.Say(ctx, &echopb.Text{Text: text})
		cancel()
		if err != nil {
			return err
		}
	}
	each := time.Since(start) / time.Duration(count)
	fmt.Printf("%s\n%d calls over %s, %v each\n", reply.Text, count, carrier(conn.Transport()), each)
	return nil
}

// carrier says what carries the calls and why.
func carrier(info transport.Info) string {
	if info.Kind == transport.RDMA {
		return fmt.Sprintf("rdma (%s, MTU %d)", info.Link.Device, info.Link.MTU)
	}
	return fmt.Sprintf("%s (%s)", info.Kind, info.Reason)
}
