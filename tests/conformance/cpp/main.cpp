// conformance read FILE...        prints what each message holds, a line of JSON each
// conformance copy [IN OUT]...    decodes, encodes anew and prints as much
//
// For a message that is refused the line is {"refused": CODE}, and the exit status 1.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "message.hpp"

int main(int count, char** arguments) {
    const std::string command = count > 1 ? arguments[1] : "";
    const int step = command == "copy" ? 2 : 1;
    if ((command != "read" && command != "copy") || (count - 2) % step != 0) {
        std::cerr << "usage: conformance read FILE... | conformance copy [IN OUT]...\n";
        return 2;
    }
    int status = 0;
    for (int i = 2; i < count; i += step) {
        std::ifstream in(arguments[i], std::ios::binary);
        const std::string blob{std::istreambuf_iterator<char>(in), {}};
        if (!in) {
            std::cerr << "cannot read " << arguments[i] << '\n';
            return 2;
        }
        try {
            const omniwire::Value object = omniwire::read(blob);
            if (command == "copy") {
                std::ofstream out(arguments[i + 1], std::ios::binary);
                if (!(out << omniwire::write(object)).flush()) {
                    std::cerr << "cannot write " << arguments[i + 1] << '\n';
                    return 2;
                }
            }
            std::cout << omniwire::show(object) << '\n';
        } catch (const omniwire::Refusal& refusal) {
            std::cerr << arguments[i] << ": " << refusal.what() << '\n';
            std::cout << "{\"refused\": \"" << refusal.code << "\"}\n";
            status = 1;
        }
    }
    return status;
}
