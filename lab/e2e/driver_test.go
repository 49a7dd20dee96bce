package e2e

import (
	"context"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/onfakecloud"
)

// driverEnv, in the environment, has this program be a driver of the cluster of this name, and no test.
const driverEnv = "CCMLAB_E2E_DRIVER_OF"

func TestMain(m *testing.M) {
	cluster := os.Getenv(driverEnv)
	if cluster == "" {
		os.Exit(m.Run())
	}
	if err := serveDriver(cluster); err != nil {
		panic(err)
	}
}

// serveDriver serves a driver of fakecloud until the process is ended.
func serveDriver(cluster string) error {
	cloud, err := client.New(client.Config{
		URL: os.Getenv("FAKECLOUD_URL"), TokenFile: os.Getenv("FAKECLOUD_TOKEN_FILE"),
		CAFile: os.Getenv("FAKECLOUD_CA_FILE"),
	})
	if err != nil {
		return err
	}
	socket, err := net.Listen("unix", os.Getenv(protocol.EnvSocket))
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: protocol.NewHandler(&driverProgram{
		onfakecloud.Cloud{API: cloud, Cluster: cluster},
	})}
	return server.Serve(socket)
}

// driverProgram is a driver of fakecloud that leaves faults to the suite's proxy.
type driverProgram struct{ onfakecloud.Cloud }

// Hello implements protocol.Operations.
func (*driverProgram) Hello(context.Context, protocol.Hello) (protocol.Driver, error) {
	rules := []protocol.ProxyRule{}
	for thing, path := range map[protocol.Thing]string{
		protocol.Instances: "/v1/instances", protocol.Balancers: "/v1/load-balancers", protocol.Routes: "/v1/routes",
	} {
		rules = append(rules,
			protocol.ProxyRule{Thing: thing, Path: path}, protocol.ProxyRule{Thing: thing, Path: path + "/{rest...}"})
	}
	return protocol.Driver{
		Name: "a program", Features: []string{
			"node-names", "zones", "instance-types", "listeners", "node-ports", "targets", "udp", "machines", "traffic",
		},
		Proxy: &protocol.Proxy{
			Upstream: os.Getenv("FAKECLOUD_URL"), CAFile: os.Getenv("FAKECLOUD_CA_FILE"), Rules: rules,
		},
		CCM: &protocol.CCM{
			Args: []string{
				"--kubeconfig={{.Kubeconfig}}", "--cloud-config={{.CloudConfig}}", "--cluster-name={{.ClusterName}}",
				"--bind-address={{.Address}}", "--secure-port={{.Port}}", "--configure-cloud-routes=false",
				"--node-monitor-period=1s",
			},
			Config: "url: {{.CloudURL}}\ntokenFile: {{.TokenFile}}\nproject: {{.Project}}\n",
		},
	}, nil
}
