package kind

// The CCM as a Deployment in the cluster, its credentials in a Secret; or another program as a
// process of this machine.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/apply"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/image"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/manifests"
)

const (
	ccmName = "cloud-controller-manager"
	// ccmReplicas are two: one leads, one waits.
	ccmReplicas = 2
	ccmBound    = 2 * time.Minute
)

// StartCCM starts the program of UseCCM, else the Deployment.
func (c *Cluster) StartCCM(ctx context.Context) error {
	used, err := c.localSite().ProgramInUse()
	if err != nil {
		return err
	}
	if used == nil {
		return c.startDeployment(ctx)
	}
	cloud := c.Cloud()
	return c.localSite().StartCCMWith(
		ctx, local.CCMConfig(cloud.URL, cloud.TokenFile(cluster.CallerCCM), cloud.CAFile, c.lab.Name)+
			local.NetworkBalancersConfig,
	)
}

// UseCCM implements cluster.Cluster.
func (c *Cluster) UseCCM(p *cluster.Program) error { return c.localSite().UseCCM(p) }

// startDeployment loads the latest build of the CCM's image into every machine, applies the
// Deployment, and returns when one replica is ready.
func (c *Cluster) startDeployment(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, ccmBound, fmt.Errorf("gave up after %s", ccmBound))
	defer cancel()
	// A machine may boot or stop meanwhile.
	if err := cluster.Poll(ctx, "the CCM's image to be on all machines", c.loadImagesEverywhere); err != nil {
		return err
	}
	files, err := c.ccmManifests()
	if err != nil {
		return err
	}
	if err := apply.Manifests(ctx, c.Kubeconfig(), files...); err != nil {
		return err
	}
	client, err := c.Operator()
	if err != nil {
		return err
	}
	return cluster.Poll(ctx, "a replica of the CCM to be ready; `lab logs ccm` says what it does", func(ctx context.Context) error {
		d, err := client.AppsV1().Deployments(metav1.NamespaceSystem).Get(ctx, ccmName, metav1.GetOptions{})
		if err == nil && (d.Status.ObservedGeneration < d.Generation || d.Status.ReadyReplicas == 0) {
			err = fmt.Errorf("%d of %d replicas are ready", d.Status.ReadyReplicas, ccmReplicas)
		}
		return err
	})
}

func (c *Cluster) loadImagesEverywhere(ctx context.Context) error {
	machines, err := c.Machines(ctx)
	if err != nil {
		return err
	}
	var load errgroup.Group
	for m := range machines {
		load.Go(func() error { return c.loadImages(ctx, c.containerOf(m)) })
	}
	return load.Wait()
}

// ccmManifests are the CCM's configuration, its token, its Deployment and the
// Deployment's disruption budget. The Deployment rolls out when the configuration, the
// token or the image changes.
func (c *Cluster) ccmManifests() ([][]byte, error) {
	ca, err1 := os.ReadFile(c.Cloud().CAFile)
	token, err2 := os.ReadFile(c.Cloud().TokenFile(cluster.CallerCCM))
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	// The rest is the Deployment's business.
	config := fmt.Sprintf("url: %s\nproject: %s\n", c.Cloud().URL, c.lab.Name) + local.MassDeletionConfig +
		local.NetworkBalancersConfig
	meta := func(kind, name string) (metav1.TypeMeta, metav1.ObjectMeta) {
		return metav1.TypeMeta{APIVersion: "v1", Kind: kind}, metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceSystem,
		}
	}
	configMap, secret := &corev1.ConfigMap{
		Data: map[string]string{"cloud-config.yaml": config, "ca.crt": string(ca)},
	}, &corev1.Secret{Data: map[string][]byte{"token": token}}
	configMap.TypeMeta, configMap.ObjectMeta = meta("ConfigMap", ccmName+"-config")
	secret.TypeMeta, secret.ObjectMeta = meta("Secret", ccmName+"-token")
	configYAML, err1 := yaml.Marshal(configMap)
	secretYAML, err2 := yaml.Marshal(secret)
	imageID, err3 := image.ID(c.imageFile(ccmImage))
	deployment, err4 := c.ccmDeployment(slices.Concat(configYAML, secretYAML, []byte(imageID)))
	return [][]byte{
		configYAML, secretYAML, deployment, manifests.CCMDisruptionBudget,
	}, errors.Join(err1, err2, err3, err4)
}

// ccmDeployment is the Deployment of manifests/ccm, adapted to this cluster.
func (c *Cluster) ccmDeployment(config []byte) ([]byte, error) {
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(manifests.CCMDeployment, &d); err != nil {
		return nil, err
	}
	d.Spec.Replicas = new(int32(ccmReplicas))
	hash := sha256.Sum256(config)
	// Another configuration, other pods.
	d.Spec.Template.Annotations = map[string]string{"ccmlab.io/config-hash": hex.EncodeToString(hash[:8])}
	ccm := &d.Spec.Template.Spec.Containers[0]
	ccm.Image, ccm.ImagePullPolicy = ccmImage, corev1.PullNever // It is built here and in no registry.
	ccm.Args = append(ccm.Args, c.ccmArgs()...)
	return yaml.Marshal(&d)
}

// ccmArgs are appended to the arguments: of a flag that is given twice the last one
// counts. Periods are short, so that changes show soon in a small lab.
func (c *Cluster) ccmArgs() []string {
	args := append([]string{"--cluster-name=" + c.lab.Name, "--node-monitor-period=2s"}, local.ShortLease...)
	if c.usesCloudRoutes() {
		args = append(
			args, "--configure-cloud-routes=true", "--allocate-node-cidrs=true", "--cluster-cidr="+podSubnet,
			"--route-reconciliation-period=2s",
		)
	}
	return args
}

// StopCCM stops the CCM, whichever it is.
func (c *Cluster) StopCCM(ctx context.Context) error {
	return errors.Join(c.localSite().StopCCM(ctx), c.stopDeployment(ctx))
}

// stopDeployment scales the Deployment to zero, and returns when none of its pods is Ready. A
// pod on a stopped machine is never deleted, but does not run either.
func (c *Cluster) stopDeployment(ctx context.Context) error {
	client, err := c.Operator()
	if err != nil {
		return err
	}
	_, err = client.AppsV1().Deployments(metav1.NamespaceSystem).Patch(
		ctx, ccmName, types.MergePatchType, []byte(`{"spec":{"replicas":0}}`),
		metav1.PatchOptions{FieldManager: "ccmlab"},
	)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ccmBound, fmt.Errorf("gave up after %s", ccmBound))
	defer cancel()
	return cluster.Poll(ctx, "the CCM's pods to end", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(metav1.NamespaceSystem).
			List(ctx, metav1.ListOptions{LabelSelector: "app=" + ccmName})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if kubediff.IsPodReady(&pod) {
				return fmt.Errorf("%s on %s is Ready", pod.Name, pod.Spec.NodeName)
			}
		}
		return nil
	})
}

// localPort is upstream's for a CCM.
const localPort = 10258

// loopbackOf is this machine's own address for a lab, and no other lab's: the
// network's gateway with another first byte. Embedded labs are below it.
func loopbackOf(subnet netip.Prefix) netip.Addr {
	b := gatewayOf(subnet).As4()
	b[0] = 127
	return netip.AddrFrom4(b)
}

// ccmSpec describes the process of a CCM that is not the Deployment.
func (c *Cluster) ccmSpec() process.Spec {
	command := c.CCMCommand()
	return process.Spec{
		Component: local.ComponentCCM, Path: command.Path, Args: command.Args, Env: local.MassDeletionEnv,
		LogFile: c.localSite().LogFile(local.ComponentCCM),
	}
}

// CCMCommand implements cluster.Cluster: the CCM as a process of this machine, for
// somebody who restarts or replaces it more often than a Deployment allows. It has the
// operator's rights.
func (c *Cluster) CCMCommand() cluster.CCMCommand {
	address := ""
	if subnet, err := c.parseSubnet(); err == nil {
		address = loopbackOf(subnet).String()
	}
	config := c.localSite().CloudConfig()
	return cluster.CCMCommand{
		Path: c.bin.Program("ccm"), CloudConfig: config, Address: address, Port: localPort, ClusterCIDR: podSubnet,
		NeedsRoutes: c.usesCloudRoutes(), NetworkBalancers: true,
		Args: slices.Concat(local.KubeconfigFlags(c.Kubeconfig()), []string{
			"--cloud-config=" + config, "--bind-address=" + address, "--secure-port=" + strconv.Itoa(localPort),
			"--profiling=false",
			"--configure-cloud-routes=false", // Of a flag that comes twice the last counts.
		}, c.ccmArgs()),
	}
}
