package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

const (
	zoneLabel = "topology.kubernetes.io/zone"
	// serviceAccountDir is where the kubelet mounts the token and the API server's
	// CA certificate.
	serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	// onlyMetadata is the Accept header for the Node's metadata without its spec and status.
	onlyMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

	// defaultZoneTimeout bounds how long the server waits for the API server's answer before it
	// listens. Probes have no more patience.
	defaultZoneTimeout = 2 * time.Second
	// nodeRequestTimeout bounds one request for the Node.
	nodeRequestTimeout = 5 * time.Second
	// minNodePause and maxNodePause bound the backoff between two requests.
	minNodePause = 250 * time.Millisecond
	maxNodePause = 10 * time.Second
	// maxNodeBytes bounds the API server's answer. It is more than etcd accepts for an object.
	maxNodeBytes = 2 << 20
)

// nodeURL returns the URL of the pod's Node in the API server. It is empty outside a pod, and
// where NODE_NAME is not set.
func nodeURL(env map[string]string) string {
	host, node := env["KUBERNETES_SERVICE_HOST"], env["NODE_NAME"]
	if host == "" || node == "" {
		return ""
	}
	return "https://" + net.JoinHostPort(host, env["KUBERNETES_SERVICE_PORT"]) + "/api/v1/nodes/" + url.PathEscape(node)
}

// zoneFinder finds the pod's zone: from the pod's label, or else from its Node's.
//
// When a pod is bound, the API server's admission copies the label from the Node (KEP-4742,
// plugin/pkg/admission/podtopologylabels). It knows the Node from its own watch. The scheduler
// has another watch, and binds as soon as it sees the Node without its taint. One update removes
// the taint and sets the labels, so a pod may be bound before the admission has seen it; such a
// pod never gets the label. The Node in the API server has the label by then.
type zoneFinder struct {
	// nodeURL is empty when there is no Node to request.
	nodeURL string
	// credentials is the folder of the token and the CA certificate.
	credentials string
	// answerTimeout bounds how long waitForAnswer waits.
	answerTimeout time.Duration

	zone atomic.Value // string
	// answered is closed once the zone is known, the API server has returned a Node without one,
	// or there is no Node to request.
	answered chan struct{}
}

func newZoneFinder(o options) *zoneFinder {
	z := &zoneFinder{
		nodeURL: o.nodeURL, credentials: o.credentials, answerTimeout: o.zoneTimeout, answered: make(chan struct{}),
	}
	z.zone.Store(o.identity.Zone)
	return z
}

// currentZone is empty while the zone is not known.
func (z *zoneFinder) currentZone() string { return z.zone.Load().(string) }

// waitForAnswer waits until the API server has answered, for answerTimeout at most.
func (z *zoneFinder) waitForAnswer(ctx context.Context) {
	select {
	case <-z.answered:
	case <-time.After(z.answerTimeout):
	case <-ctx.Done():
	}
}

// pollNode requests the Node again and again until it has a zone, or ctx ends.
func (z *zoneFinder) pollNode(ctx context.Context) {
	if z.currentZone() != "" || z.nodeURL == "" {
		close(z.answered)
		return
	}
	shown, logged := false, ""
	for pause := minNodePause; ; pause = min(2*pause, maxNodePause) {
		zone, err := z.getNodeZone(ctx)
		if ctx.Err() != nil {
			return
		}
		z.zone.Store(zone)
		if err == nil && !shown {
			shown = true
			close(z.answered)
		}
		switch {
		case err != nil && err.Error() != logged:
			logged = err.Error()
			fmt.Printf("the pod has no zone label, and its Node cannot be asked yet: %s\n", logged)
		case zone != "":
			fmt.Printf("the pod has no zone label; its Node is in zone %s\n", zone)
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// getNodeZone returns the Node's zone label; "" for a Node without one. It reads token and
// certificates each time, as the kubelet renews them.
func (z *zoneFinder) getNodeZone(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, nodeRequestTimeout)
	defer cancel()
	token, err := os.ReadFile(filepath.Join(z.credentials, "token"))
	if err != nil {
		return "", err
	}
	certificates, err := os.ReadFile(filepath.Join(z.credentials, "ca.crt"))
	if err != nil {
		return "", err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(certificates) {
		return "", fmt.Errorf("there is no certificate in %s", filepath.Join(z.credentials, "ca.crt"))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, z.nodeURL, nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Accept", onlyMetadata)
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
	}}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	var object struct {
		Message  string // of a metav1.Status, which says why not
		Metadata struct{ Labels map[string]string }
	}
	err = json.NewDecoder(io.LimitReader(answer.Body, maxNodeBytes)).Decode(&object)
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", answer.Status, object.Message)
	}
	return object.Metadata.Labels[zoneLabel], err
}
