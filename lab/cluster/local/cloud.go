package local

import (
	"context"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
)

// ComponentCloud is the name of the cloud's process.
const ComponentCloud = "fakecloud"

// Cloud says how to reach the lab's cloud. It speaks plain HTTP, because only this
// machine can reach it.
func (s Site) Cloud() cluster.Cloud {
	return cluster.Cloud{URL: "http://" + s.Endpoint(PortCloud), Dir: s.Lab.Path("cloud")}
}

// Fakecloud describes the process of the lab's cloud, which writes the token files.
func (s Site) Fakecloud(tag string) process.Spec {
	spec := s.Spec(ComponentCloud, "fakecloud", "serve",
		"--listen="+s.Endpoint(PortCloud),
		"--data="+s.Lab.Path("cloud", "cloud.db"),
		"--project="+s.Lab.Name,
		"--profile="+s.Lab.Profile,
		"--default-tag="+tag,
		"--instance-cidr="+s.InstanceCIDR(),
		"--load-balancer-cidr="+s.LoadBalancerCIDR(),
	)
	for _, caller := range cluster.Callers {
		spec.Args = append(spec.Args, cluster.TokenFlag(caller, s.Cloud().TokenFile(caller)))
	}
	return spec
}

// StartCloud starts the cloud and returns when it is ready.
func (s Site) StartCloud(ctx context.Context, tag string, note func(string)) error {
	note("waiting for it to be ready")
	cloud, err := s.Cloud().Client(cluster.CallerLab)
	if err != nil {
		return err
	}
	return s.Serve(ctx, "fakecloud to be ready on "+s.Cloud().URL, cloud.Ready, s.Fakecloud(tag))
}
