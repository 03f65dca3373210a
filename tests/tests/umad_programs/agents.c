/*
 * Registers an agent for each class of MADs on the first port, all at one time, and prints which ones it has.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include <rdma/ib_user_mad.h>

static const struct {
	const char *name;
	int qpn, class, version, method, oui;
} agents[] = {
	{ "SMP Trap", 0, 0x01, 1, 0x05, 0 },
	{ "directed SMP Send", 0, 0x81, 1, 0x03, 0 },
	{ "SA Report", 1, 0x03, 2, 0x06, 0 },
	{ "PerfMgt Get", 1, 0x04, 1, 0x01, 0 },
	{ "DevMgt Get", 1, 0x06, 1, 0x01, 0 },
	{ "CM Send", 1, 0x07, 2, 0x03, 0 },
	{ "vendor Get", 1, 0x0a, 1, 0x01, 0 },
	{ "vendor Get with OUI", 1, 0x32, 1, 0x01, 0x1405 },
};

int main(void)
{
	int fd = open("/dev/infiniband/umad0", O_RDWR);
	unsigned int i;

	if (fd < 0) {
		perror("umad0");
		return 1;
	}
	for (i = 0; i < sizeof(agents) / sizeof(*agents); i++) {
		struct ib_user_mad_reg_req2 request = {
			.qpn = agents[i].qpn,
			.mgmt_class = agents[i].class,
			.mgmt_class_version = agents[i].version,
			.method_mask = { 1ULL << agents[i].method },
			.oui = agents[i].oui,
		};
		int error = ioctl(fd, IB_USER_MAD_REGISTER_AGENT2, &request) ? errno : 0;

		printf("%s: %s\n", agents[i].name, error ? strerrorname_np(error) : "ok");
	}
	return 0;
}
