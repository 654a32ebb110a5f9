/* The floor: how many times a second this machine can start and reap a program, one spawner per core.
 *
 * usage: floor SECONDS SPAWNERS PROGRAM     prints programs per second, all spawners together
 */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static long spawn_until(double end, char *program) {
    char *argv[] = {program, NULL};
    long count = 0;
    while (seconds() < end) {
        pid_t child;
        if (posix_spawn(&child, program, NULL, NULL, argv, environ) != 0) _exit(1);
        waitpid(child, NULL, 0);
        count++;
    }
    return count;
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: floor SECONDS SPAWNERS PROGRAM\n"), 2;
    int spawners = atoi(argv[2]);
    long *counts = mmap(NULL, spawners * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double begin = seconds(), end = begin + atof(argv[1]);
    for (int i = 0; i < spawners; i++)
        if (fork() == 0) {
            counts[i] = spawn_until(end, argv[3]);
            _exit(0);
        }
    while (wait(NULL) > 0) {}
    long total = 0;
    for (int i = 0; i < spawners; i++) total += counts[i];
    printf("%.1f\n", total / (seconds() - begin));
    return 0;
}
