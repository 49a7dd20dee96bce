// preload imports images, as docker archives, into the store of a node's containerd. It uses
// containerd's code, and needs neither its daemon nor root.
//
//	preload STORE ARCHIVE...     STORE becomes the node's /var/lib/containerd
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	bolt "go.etcd.io/bbolt"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "preload:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	if len(args) < 2 {
		return errors.New("a folder for the store and at least one archive are needed")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// containerd's plugins look for their data in folders of their own names.
	content, err := local.NewStore(filepath.Join(args[0], "io.containerd.content.v1.content"))
	if err != nil {
		return err
	}
	meta := filepath.Join(args[0], "io.containerd.metadata.v1.bolt")
	if err := os.MkdirAll(meta, 0o711); err != nil {
		return err
	}
	bdb, err := bolt.Open(filepath.Join(meta, "meta.db"), 0o644, &bolt.Options{Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bdb.Close()) }()
	db := metadata.NewDB(bdb, content, nil)
	if err := db.Init(ctx); err != nil {
		return err
	}
	c, err := client.New("", client.WithServices(client.WithContentStore(db.ContentStore()),
		client.WithImageStore(metadata.NewImageStore(db)), client.WithLeasesService(metadata.NewLeaseManager(db))))
	if err != nil {
		return err
	}
	ctx = namespaces.WithNamespace(ctx, "k8s.io") // The kubelet's.
	for _, archive := range args[1:] {
		if err := importPinnedImage(ctx, c, archive); err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
	}
	return nil
}

// importPinnedImage imports an archive's image. It pins the image, so that the kubelet does not
// remove it when the disk is full: no registry has it.
func importPinnedImage(ctx context.Context, c *client.Client, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	images, err := c.Import(ctx, f, client.WithImageLabels(map[string]string{"io.cri-containerd.pinned": "pinned"}))
	if err == nil && len(images) == 0 {
		err = errors.New("no image in it")
	}
	return err
}
