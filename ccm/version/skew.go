package version

// Whether this build fits the cluster's version. It is logged once, at start, and
// prevents nothing.

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
)

// LogSkew logs this build's version and the cluster's, as soon as the API server
// answers: a warning if they were not tested together.
func LogSkew(ctx context.Context, server discovery.ServerVersionInterface) {
	_ = wait.PollUntilContextCancel(ctx, 2*time.Second, true, func(context.Context) (bool, error) {
		theirs, err := server.ServerVersion()
		if err != nil {
			klog.V(4).InfoS("The API server does not tell its version yet", "err", err)
			return false, nil
		}
		ours := Get()
		if err := checkSkew(theirs); err != nil {
			klog.Warningf("%v; this is ccm %s with Kubernetes libraries %s", err, ours.Version, ours.Kubernetes)
		} else {
			klog.InfoS("This build was tested with clusters of this version",
				"kubernetes", theirs.GitVersion, "ccm", ours.Version, "libraries", ours.Kubernetes)
		}
		return true, nil
	})
}

// checkSkew returns an error for an API server whose minor this build was not tested
// with.
func checkSkew(server *apiversion.Info) error {
	minor, err := strconv.Atoi(strings.TrimSuffix(server.Minor, "+")) // Some providers add one.
	switch {
	case err != nil || server.Major != "1":
		return fmt.Errorf("the cluster runs Kubernetes %s, which this build does not know: it was tested with %s",
			server.GitVersion, Supported())
	case minor < MinMinor:
		return fmt.Errorf("the cluster runs Kubernetes %s, but this build was tested with %s: "+
			"a cloud controller manager must not be newer than the API server; "+
			"run an older ccm, or upgrade the cluster", server.GitVersion, Supported())
	case minor > MaxMinor:
		return fmt.Errorf("the cluster runs Kubernetes %s, but this build was tested with %s: "+
			"a cloud controller manager may be one minor older than the API server, and no more; "+
			"run a newer ccm", server.GitVersion, Supported())
	}
	return nil
}
