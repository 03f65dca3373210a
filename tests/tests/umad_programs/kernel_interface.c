/*
 * What a program sees of umad when it uses the kernel's interface itself: descriptors, error numbers,
 * lengths. Prints a line for each thing it looked at; the test compares them.
 *
 * Usage: kernel_interface SM_LID DEAD_LID
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/ib_user_mad.h>

enum { HEADER = sizeof(struct ib_user_mad_hdr), MAD = 256, WHOLE = HEADER + MAD };
enum { SUBN_ADM = 3, GET = 1, GET_TABLE = 0x12, PATH_RECORD = 0x35, NODE_RECORD = 0x11 };

static const char *name_of(int error)
{
	return error ? strerrorname_np(error) : "ok";
}

static void said(const char *what, long result)
{
	int error = errno;

	if (result < 0)
		printf("%s: %s\n", what, name_of(error));
	else
		printf("%s: %ld\n", what, result);
}

static int registered(int fd, int class, int version, int rmpp)
{
	struct ib_user_mad_reg_req2 request = {
		.qpn = class != 1 && class != 0x81,
		.mgmt_class = class,
		.mgmt_class_version = version,
		.rmpp_version = rmpp,
	};

	if (ioctl(fd, IB_USER_MAD_REGISTER_AGENT2, &request))
		return -1;
	return request.id;
}

/* A request to the SA for a table or a record, with a transaction id. */
static void sa_request(char *umad, int agent, int lid, int timeout, int method, int attribute, int tid)
{
	struct ib_user_mad_hdr *header = (void *)umad;
	unsigned char *mad = (void *)(umad + HEADER);

	memset(umad, 0, WHOLE);
	header->id = agent;
	header->timeout_ms = timeout;
	header->qpn = htonl(1);
	header->qkey = htonl(0x80010000);
	header->lid = htons(lid);
	mad[0] = 1;
	mad[1] = SUBN_ADM;
	mad[2] = 2;
	mad[3] = method;
	mad[15] = tid;
	mad[17] = attribute;
}

static int readable(int fd, int timeout)
{
	struct pollfd wanted = { .fd = fd, .events = POLLIN };

	return poll(&wanted, 1, timeout);
}

static void look_at_errors(int sm_lid)
{
	char umad[WHOLE + 1];
	struct ib_user_mad_reg_req request = { .qpn = 1, .mgmt_class = 4, .mgmt_class_version = 1 };
	int fd = open("/dev/infiniband/umad0", O_RDWR | O_NONBLOCK);
	uint32_t none = 5;

	said("open umad9", open("/dev/infiniband/umad9", O_RDWR));
	said("read empty", read(fd, umad, sizeof umad));
	said("read without room for a header", read(fd, umad, 8));
	sa_request(umad, 0, sm_lid, 100, GET, NODE_RECORD, 1);
	said("write without an agent", write(fd, umad, WHOLE));
	sa_request(umad, 32, sm_lid, 100, GET, NODE_RECORD, 1);
	said("write to an agent beyond all", write(fd, umad, WHOLE));
	said("enable P_Key indices", ioctl(fd, IB_USER_MAD_ENABLE_PKEY, NULL));
	said("register the old way", ioctl(fd, IB_USER_MAD_REGISTER_AGENT, &request));
	said("enable P_Key indices too late", ioctl(fd, IB_USER_MAD_ENABLE_PKEY, NULL));
	request.qpn = 7;
	said("register on QP7", ioctl(fd, IB_USER_MAD_REGISTER_AGENT, &request));
	said("register", registered(fd, SUBN_ADM, 2, 1));
	said("unregister nobody", ioctl(fd, IB_USER_MAD_UNREGISTER_AGENT, &none));
	said("unknown ioctl", ioctl(fd, 0x5401, umad));
	said("write too little", write(fd, umad, HEADER + 35));
	said("write too much", write(fd, umad, sizeof umad));
	said("poll", readable(fd, 0));
	said("close", close(fd));
	said("read closed", read(fd, umad, sizeof umad));
}

/* Asks for the whole table and reads it: first with too little room, then with enough. */
static void look_at_a_table(int sm_lid)
{
	char umad[WHOLE], *whole;
	struct ib_user_mad_hdr *header = (void *)umad;
	int fd = open("/dev/infiniband/umad0", O_RDWR);
	int agent = registered(fd, SUBN_ADM, 2, 1);
	unsigned length;

	sa_request(umad, agent, sm_lid, 5000, GET_TABLE, PATH_RECORD, 7);
	said("ask for all paths", write(fd, umad, sizeof umad));
	said("readable", readable(fd, 60000));
	said("read with too little room for a MAD", read(fd, umad, sizeof umad - 1));
	said("read with too little room for the table", read(fd, umad, sizeof umad));
	length = header->length;
	printf("bytes of the table: %u\n", length - HEADER);
	printf("head: method %#x, low id %d\n", umad[HEADER + 3] & 0xff, umad[HEADER + 15]);
	said("still readable", readable(fd, 0));
	whole = malloc(length + 1000);
	printf("read with room: %s\n", read(fd, whole, length + 1000) == length ? "the table" : "something else");
	printf("the same head: %s\n", memcmp(whole, umad, sizeof umad) ? "no" : "yes");
	said("readable then", readable(fd, 0));
	free(whole);
	close(fd);
}

static void look_at_a_timeout(int lid)
{
	char umad[WHOLE];
	struct ib_user_mad_hdr *header = (void *)umad;
	struct timespec begun, ended;
	int fd = open("/dev/infiniband/umad0", O_RDWR);
	int agent = registered(fd, SUBN_ADM, 2, 1);
	long millis;

	sa_request(umad, agent, lid, 100, GET, NODE_RECORD, 9);
	header->retries = 2;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	said("ask nobody", write(fd, umad, sizeof umad));
	said("ask nobody the same", write(fd, umad, sizeof umad));
	memset(umad, 0, sizeof umad);
	said("read", read(fd, umad, sizeof umad));
	clock_gettime(CLOCK_MONOTONIC, &ended);
	millis = (ended.tv_sec - begun.tv_sec) * 1000 + (ended.tv_nsec - begun.tv_nsec) / 1000000;
	printf("after three times 100 ms: %s\n", millis >= 300 ? "yes" : "no");
	printf("status: %s, low id %d\n", name_of(header->status), umad[HEADER + 15]);
	sa_request(umad, agent, lid, 100, GET, NODE_RECORD, 9);
	said("ask nobody the same again", write(fd, umad, sizeof umad));
	close(fd);
}

static int shared;

static void *reader(void *count)
{
	char umad[WHOLE];

	for (long i = 0; i < (long)count; i++)
		if (read(shared, umad, sizeof umad) != sizeof umad)
			return "a bad read";
	return NULL;
}

/* Threads that write and read one file, a copy of its descriptor, and a child that has it. */
static void look_at_sharing(int sm_lid)
{
	enum { REQUESTS = 50 };
	pthread_t readers[2];
	void *trouble[2];
	char umad[WHOLE];
	int agent, copy, status;

	shared = open("/dev/infiniband/umad0", O_RDWR);
	agent = registered(shared, SUBN_ADM, 2, 1);
	for (int i = 0; i < 2; i++)
		pthread_create(&readers[i], NULL, reader, (void *)(long)REQUESTS);
	for (int i = 0; i < 2 * REQUESTS; i++) {
		sa_request(umad, agent, sm_lid, 10000, GET, 1, i);
		if (write(shared, umad, sizeof umad) != sizeof umad)
			printf("a bad write\n");
	}
	for (int i = 0; i < 2; i++)
		pthread_join(readers[i], &trouble[i]);
	printf("two readers: %s\n", trouble[0] || trouble[1] ? "trouble" : "ok");
	copy = dup(shared);
	close(shared);
	sa_request(umad, agent, sm_lid, 10000, GET, 1, 3);
	said("write to the copy", write(copy, umad, sizeof umad));
	said("read from the copy", read(copy, umad, sizeof umad));
	fflush(stdout);
	if (fork() == 0) {
		sa_request(umad, agent, sm_lid, 10000, GET, 1, 4);
		_exit(write(copy, umad, sizeof umad) != sizeof umad || read(copy, umad, sizeof umad) != sizeof umad);
	}
	wait(&status);
	printf("a child: %s\n", status ? "trouble" : "ok");
	close(copy);
}

int main(int argc, char **argv)
{
	int sm_lid = atoi(argv[1]);

	setvbuf(stdout, NULL, _IOLBF, 0);
	look_at_errors(sm_lid);
	look_at_a_table(sm_lid);
	look_at_a_timeout(atoi(argv[2]));
	look_at_sharing(sm_lid);
	return argc != 3;
}
