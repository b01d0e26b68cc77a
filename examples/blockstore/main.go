// Command blockstore keeps blocks of bytes in a file and serves them.
//
//	go run ./examples/blockstore -listen :7400 -file /var/tmp/blocks
//	go run ./examples/blockstore -addr host:7400 put 7 < block
//	go run ./examples/blockstore -addr host:7400 get 7 > block
//	go run ./examples/blockstore -addr host:7400 delete 7
//
// What put and delete have acknowledged is on the disk. Calls run over RDMA
// where both sides can, else over TCP; -tcp asks for TCP alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/examples/blockstore/blockpb"
	"github.com/verbena-rpc/verbena/examples/blockstore/internal/blockfile"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatalf("blockstore: %v", err)
	}
}

func run() error {
	listen := flag.String("listen", "", "serve at this address, host:port")
	path := flag.String("file", "blocks", "file to serve")
	addr := flag.String("addr", "", "call the server at this address, host:port")
	tcpOnly := flag.Bool("tcp", false, "use TCP alone, although there may be RDMA")
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
	case *listen != "":
		return serve(ctx, network, *listen, *path)
	}
	return command(ctx, network, *addr, flag.Args())
}

// serve runs the server until ctx ends, lets calls under way finish, and
// closes the file after the last.
func serve(ctx context.Context, network *transport.Network, addr, path string) error {
	file, err := blockfile.Open(path, blockfile.Limits{})
	if err != nil {
		return err
	}
	if n := file.Torn(); n > 0 {
		fmt.Printf("%s: cut off %d bytes of a commit that was not acknowledged\n", path, n)
	}
	server := rpc.NewServer(network)
	if err := blockpb.RegisterBlocksServer(server, service{file}); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := server.Listen(addr); err != nil {
		return errors.Join(err, file.Close())
	}
	fmt.Println("listening on", server.Addr())
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	select {
	case err = <-served:
	case <-ctx.Done():
		grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = server.Shutdown(grace)
	}
	return errors.Join(err, file.Close())
}

// command makes one call. It may take 30 s, with all that leads to it.
func command(ctx context.Context, network *transport.Network, addr string, args []string) error {
	if len(args) != 2 {
		return errors.New("expected put, get or delete, and the number of a block")
	}
	id, err := strconv.ParseUint(args[1], 0, 64)
	if err != nil {
		return fmt.Errorf("number of a block: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := rpc.Dial(ctx, network, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	blocks := blockpb.NewBlocksClient(conn)
	switch args[0] {
	case "put":
		return put(ctx, blocks, id)
	case "get":
		return get(ctx, blocks, id)
	case "delete":
		_, err := blocks.Delete(ctx, &blockpb.DeleteRequest{Id: id})
		return err
	}
	return fmt.Errorf("%q is none of put, get and delete", args[0])
}

func put(ctx context.Context, blocks blockpb.BlocksClient, id uint64) error {
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	_, err = blocks.Put(ctx, &blockpb.PutRequest{Id: id, Data: data})
	return err
}

func get(ctx context.Context, blocks blockpb.BlocksClient, id uint64) error {
	reply, err := blocks.Get(ctx, &blockpb.GetRequest{Id: id})
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(reply.Data)
	return err
}
