// Compiles what most tests include once for all of them (tandem_test in cmake/TandemTargets.cmake).

int main() {}
