package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Cloud is a running `fakecloud serve`.
type Cloud struct {
	*Process
	Address, Token string
	binary, dir    string
	flags          []string
}

var readyLine = regexp.MustCompile(`(?m)^fakecloud is ready at http://(\S+);`)

// Pool is the first two bytes of the loopback addresses that this process uses. Neither a lab
// nor a second benchmark on this machine uses the same.
func Pool() string { return fmt.Sprintf("127.%d.", 128+os.Getpid()%120) }

// StartCloud starts a cloud that listens on any port and has its data in dir, and returns
// when it is ready.
func StartCloud(ctx context.Context, binary, dir string, flags ...string) (*Cloud, error) {
	c := &Cloud{binary: binary, dir: dir, flags: flags}
	if err := c.startServe("127.0.0.1:0"); err != nil {
		return nil, err
	}
	var err error
	if c.Address, err = c.AwaitLine(ctx, readyLine); err != nil {
		c.Kill()
		return nil, err
	}
	token, err := os.ReadFile(c.tokenFile())
	if err != nil {
		c.Kill()
		return nil, err
	}
	c.Token = strings.TrimSpace(string(token))
	return c, nil
}

// tokenFile holds an administrator's token.
func (c *Cloud) tokenFile() string { return filepath.Join(c.dir, "token") }

// NewClient makes a client with the administrator's token.
func (c *Cloud) NewClient(userAgent string) (*client.Client, error) {
	return client.New(client.Config{
		URL: "http://" + c.Address, TokenFile: c.tokenFile(), UserAgent: userAgent, Direct: true,
	})
}

// Restart kills the cloud and starts it again at the same address, without waiting until it
// is ready.
func (c *Cloud) Restart() error {
	c.Kill()
	return c.startServe(c.Address)
}

func (c *Cloud) startServe(listen string) error {
	args := append([]string{
		"serve", "--listen", listen, "--data", filepath.Join(c.dir, "cloud.db"), "--token",
		"operator:admin=" + c.tokenFile(),
		"--profile", "instant", "--retention", "0s", "--instance-cidr", Pool() + "0.0/17", "--load-balancer-cidr",
		Pool() + "128.0/17",
	}, c.flags...)
	p, err := Start(exec.Command(c.binary, args...), filepath.Join(c.dir, "fakecloud.log"))
	if err == nil {
		c.Process = p
	}
	return err
}
